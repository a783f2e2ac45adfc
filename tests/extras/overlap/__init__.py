"""Tests of classes that overlap."""
