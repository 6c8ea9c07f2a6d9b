// The functions of libmgrpo_grammar, which is loaded when they are first called.
#pragma once
#include <stddef.h>

#include "shim/grammar.h"

// Loads the library; a text for free, or NULL for success.
char *load_grammar(void);
