"""The version of the package: that of the coordinators it speaks to (CMakeLists.txt says the same)."""

__version__ = "0.2.0"
