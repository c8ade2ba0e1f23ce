"""From the CSV files of ``results/`` to tables, figures and a page that opens offline. No torch."""
