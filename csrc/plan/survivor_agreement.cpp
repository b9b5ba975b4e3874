#include "plan/survivor_agreement.h"
