# SPDX-License-Identifier: Apache-2.0
# Files for packagers, and files by which other programs find banyan. Debian's tools expect debian/ at the top.
EXTRA_DIST += %D%/spack/package.py debian
cmakedir = $(libdir)/cmake/banyan
dist_cmake_DATA = %D%/cmake/banyanConfig.cmake
nodist_cmake_DATA = %D%/cmake/banyanConfigVersion.cmake
