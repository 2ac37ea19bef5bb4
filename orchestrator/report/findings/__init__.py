"""What findings are made of. `report.topics` lists them."""
