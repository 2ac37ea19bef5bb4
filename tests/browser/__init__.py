"""Tests of the report's page in headless Chromium."""
