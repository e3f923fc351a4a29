"""Parts that few need, each named like its pip extra. The core never imports them."""
