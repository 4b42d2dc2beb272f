# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/exchange.c %D%/exchange.h \
  %D%/tcp.c %D%/tcp.h \
  %D%/tcp_link.h \
  %D%/tcp_socket.h \
  %D%/threads.c
if SODIUM
libbanyan_core_la_SOURCES += \
  %D%/tcp_accept.c \
  %D%/tcp_connect.c \
  %D%/tcp_gather.c \
  %D%/tcp_link.c \
  %D%/tcp_listen.c \
  %D%/tcp_process.c \
  %D%/tcp_settings.c \
  %D%/tcp_socket.c
endif

# Ranks of an MPI_Comm are in a separate library, so that libbanyan never links MPI.
if MPI
include_HEADERS += include/banyan_mpi.h
lib_LTLIBRARIES += libbanyan-mpi.la
pkgconfig_DATA += banyan-mpi.pc
endif
libbanyan_mpi_la_SOURCES = %D%/mpi.c
libbanyan_mpi_la_CFLAGS = $(AM_CFLAGS) $(MPI_CFLAGS)
libbanyan_mpi_la_LIBADD = libbanyan.la $(MPI_LIBS)
libbanyan_mpi_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 $(no_undefined) -Wl,--version-script=$(srcdir)/%D%/banyan_mpi.map
EXTRA_libbanyan_mpi_la_DEPENDENCIES = %D%/banyan_mpi.map
