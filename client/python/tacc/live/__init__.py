"""A client that drives the ranks of a job: the session, its frames and its loader."""
