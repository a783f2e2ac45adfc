"""Figures for MLflow."""
