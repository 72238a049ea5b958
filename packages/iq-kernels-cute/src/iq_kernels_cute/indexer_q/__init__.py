"""The indexer-Q operation: variants (config), device code (kernel and its parts), raw functions (launch)."""
