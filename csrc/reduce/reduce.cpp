#include "reduce/reduce.h"
