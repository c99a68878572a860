"""Writers of the pages and pictures that nobody types: ``python docs/render.py`` calls them."""
