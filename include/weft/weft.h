// weft: tasks and objects of one program over many processes. This is all a user includes.
//
// Read on in session.h (init), remote.h (tasks), ref.h (put, get, wait), array.h (arrays in place), value.h (which
// types can be passed) and errors.h; version.h has weft::version.
#pragma once

#include "weft/array.h"    // IWYU pragma: export
#include "weft/errors.h"   // IWYU pragma: export
#include "weft/ref.h"      // IWYU pragma: export
#include "weft/remote.h"   // IWYU pragma: export
#include "weft/session.h"  // IWYU pragma: export
#include "weft/value.h"    // IWYU pragma: export
#include "weft/version.h"  // IWYU pragma: export
