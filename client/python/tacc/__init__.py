"""Python side of tacc: prepares data, converts models."""
