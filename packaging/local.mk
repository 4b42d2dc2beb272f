# SPDX-License-Identifier: Apache-2.0
# Files for packagers, and files by which other programs find banyan. Debian's tools expect debian/ at the top.
EXTRA_DIST += \
  %D%/spack/package.py \
  debian/banyan-tools.install \
  debian/changelog \
  debian/control \
  debian/copyright \
  debian/libbanyan-dev.install \
  debian/libbanyan-mpi0.install \
  debian/libbanyan-mpi0.lintian-overrides \
  debian/libbanyan-mpi0.symbols \
  debian/libbanyan0.install \
  debian/libbanyan0.symbols \
  debian/rules \
  debian/source/format
cmakedir = $(libdir)/cmake/banyan
dist_cmake_DATA = %D%/cmake/banyanConfig.cmake
nodist_cmake_DATA = %D%/cmake/banyanConfigVersion.cmake
