"""attnspec on jax."""
