"""Sort samples in bounded memory."""
