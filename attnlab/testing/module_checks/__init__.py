"""Checks of attention modules of other projects: `check_module` and `parametrize_attention_checks`."""
