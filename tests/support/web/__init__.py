"""A browser and a cluster for tests of the dashboard, and its pictures for the documents."""
