# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_boot \
  %D%/test_boot_env
if SODIUM
unit_tests += \
  %D%/test_boot_jobs \
  %D%/test_boot_many \
  %D%/test_boot_tcp
endif
libbanyan_tests_la_SOURCES += %D%/ranks.h

# Tests ranks of an MPI_Comm; skipped without MPI.
test_scripts += %D%/test-boot-mpi
mpi_programs += %D%/mpi_boot
%C%_mpi_boot_CFLAGS = $(AM_CFLAGS) $(MPI_CFLAGS)
%C%_mpi_boot_LDADD = libbanyan-mpi.la libbanyan.la $(MPI_LIBS)
