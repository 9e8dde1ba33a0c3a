"""Pieces of pictures and numbers for people: no page, no job."""
