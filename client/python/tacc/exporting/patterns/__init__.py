"""Ops that models spell out in many, found in an exported program before its nodes are lowered."""
