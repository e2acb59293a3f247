# weft_add_task_library(name sources...): a shared library of tasks, which workers can load by its path.
#
# Functions are known by the build id of the library they lie in. It is never unloaded, because weft keeps the addresses of its
# functions.
function(weft_add_task_library name)
  add_library(${name} SHARED ${ARGN})
  target_link_libraries(${name} PUBLIC weft::weft)
  target_link_options(${name} PRIVATE -Wl,--build-id -Wl,-z,nodelete)
endfunction()
