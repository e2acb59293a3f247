# find_package(weft) gives the target weft::weft and the function weft_add_task_library(name sources...).
include("${CMAKE_CURRENT_LIST_DIR}/weftTargets.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/weft_add_task_library.cmake")
