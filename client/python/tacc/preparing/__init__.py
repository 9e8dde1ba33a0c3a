"""`tacc.prepare` and `tacc data prepare`: texts, tables and conversations as a folder of tokens (docs/data.md)."""
