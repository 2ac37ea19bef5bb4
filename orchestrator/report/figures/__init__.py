"""How figures are drawn. `report.topics` lists them."""
