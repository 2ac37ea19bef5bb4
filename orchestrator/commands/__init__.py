"""What each command does; cli.py declares their options."""
