// weft: tasks, actors and objects of one program over many processes. This is all a user includes.
//
// Read on in session.h (init), remote.h (tasks), actor.h (actors), ref.h (put, get, wait), coroutine.h (co_await),
// array.h (arrays in place), value.h (which types can be passed), context.h (where this code runs),
// errors.h and version.h (weft::version). library.h, for libraries of tasks that Python calls, is included separately.
#pragma once

#include "weft/actor.h"      // IWYU pragma: export
#include "weft/array.h"      // IWYU pragma: export
#include "weft/context.h"    // IWYU pragma: export
#include "weft/coroutine.h"  // IWYU pragma: export
#include "weft/errors.h"     // IWYU pragma: export
#include "weft/ref.h"        // IWYU pragma: export
#include "weft/remote.h"     // IWYU pragma: export
#include "weft/session.h"    // IWYU pragma: export
#include "weft/value.h"      // IWYU pragma: export
#include "weft/version.h"    // IWYU pragma: export
