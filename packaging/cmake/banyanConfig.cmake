# SPDX-License-Identifier: Apache-2.0
# find_package(banyan) makes the target banyan::banyan. find_package(banyan COMPONENTS mpi) also makes banyan::mpi, for
# projects with the language C, which CMake needs to find MPI. Paths are relative to this file, so the tree can move.
get_filename_component(_banyan_libdir "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
set(_banyan_include)
foreach(_banyan_candidate ../include ../../include)
  if(NOT _banyan_include AND EXISTS "${_banyan_libdir}/${_banyan_candidate}/banyan.h")
    get_filename_component(_banyan_include "${_banyan_libdir}/${_banyan_candidate}" ABSOLUTE)
  endif()
endforeach()

set(banyan_FOUND TRUE)
if(NOT _banyan_include OR NOT EXISTS "${_banyan_libdir}/libbanyan.so")
  set(banyan_FOUND FALSE)
  set(banyan_NOT_FOUND_MESSAGE "banyan.h or libbanyan.so is not where ${CMAKE_CURRENT_LIST_FILE} expects it")
elseif(NOT TARGET banyan::banyan)
  add_library(banyan::banyan SHARED IMPORTED)
  set_target_properties(banyan::banyan PROPERTIES
    IMPORTED_LOCATION "${_banyan_libdir}/libbanyan.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_banyan_include}")
endif()

foreach(_banyan_component ${banyan_FIND_COMPONENTS})
  set(banyan_${_banyan_component}_FOUND FALSE)
  if(_banyan_component STREQUAL mpi AND banyan_FOUND AND EXISTS "${_banyan_libdir}/libbanyan-mpi.so")
    include(CMakeFindDependencyMacro)
    find_dependency(MPI COMPONENTS C)
    set(banyan_mpi_FOUND TRUE)
    if(NOT TARGET banyan::mpi)
      add_library(banyan::mpi SHARED IMPORTED)
      set_target_properties(banyan::mpi PROPERTIES
        IMPORTED_LOCATION "${_banyan_libdir}/libbanyan-mpi.so"
        INTERFACE_LINK_LIBRARIES "banyan::banyan;MPI::MPI_C")
    endif()
  endif()
  if(banyan_FIND_REQUIRED_${_banyan_component} AND NOT banyan_${_banyan_component}_FOUND)
    set(banyan_FOUND FALSE)
    set(banyan_NOT_FOUND_MESSAGE "this banyan has no component ${_banyan_component}")
  endif()
endforeach()
unset(_banyan_libdir)
unset(_banyan_include)
