"""Scenes of maps, predicted in parts by several processes, in bounded memory."""
