"""Models that learn from translations of others: small students, models of diversified text."""
