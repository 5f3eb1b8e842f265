"""Show, extract and summarise samples."""
