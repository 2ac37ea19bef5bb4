"""The report's pages and tables in HTML, Markdown and CSV."""
