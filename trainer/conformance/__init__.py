"""Laws of components: what each kind must do, tried on inputs from the smallest on."""
