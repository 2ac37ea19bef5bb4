"""The report's pages and tables: HTML, Markdown and CSV."""
