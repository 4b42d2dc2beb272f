# SPDX-License-Identifier: Apache-2.0
# Macros of this project alone.

# BNY_CHECK_CFLAGS(NAME, FLAGS, HOSTS)
# On HOSTS, a pattern: the automake conditional NAME in capitals, NAME_CFLAGS, and the macro BNY_HAVE_NAME say whether
# the compiler can make code for this instruction set.
AC_DEFUN([BNY_CHECK_CFLAGS], [
  have_$1=no
  AS_CASE([$host], [$3], [
    AC_MSG_CHECKING([whether $CC accepts $2])
    save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $2"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [have_$1=yes])
    CFLAGS=$save_CFLAGS
    AC_MSG_RESULT([$have_$1])])
  AS_IF([test $have_$1 = yes],
    [m4_toupper([$1])_CFLAGS="$2"
     bny_instruction_sets="$bny_instruction_sets $1"
     AC_DEFINE([BNY_HAVE_]m4_toupper([$1]), [1], [kernels for $1 are built])])
  AC_SUBST(m4_toupper([$1])[_CFLAGS])
  AM_CONDITIONAL(m4_toupper([$1]), [test $have_$1 = yes])
])

# BNY_WITH_ARG(NAME, PURPOSE)
# --with-NAME=auto|yes|no into with_NAME; absent_NAME says why it will be absent if it is.
AC_DEFUN([BNY_WITH_ARG], [
  AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1], [$2: auto, yes or no @<:@auto@:>@])], [], [with_$1=auto])
  have_$1=no
  absent_$1="not found"
  AS_CASE([$with_$1],
    [auto|yes], [],
    [no], [absent_$1="not wanted"],
    [AC_MSG_ERROR([--with-$1=$with_$1: wants auto, yes or no])])
])

# BNY_WITH_END(NAME, PACKAGE)
# An error if NAME was asked for and not found; PACKAGE is what to install.
AC_DEFUN([BNY_WITH_END], [
  AS_IF([test "x$with_$1" = xyes && test "x$have_$1" = xno],
    [AC_MSG_ERROR([--with-$1: not found. Debian and Ubuntu: $2. If it is elsewhere, set PKG_CONFIG_PATH])])
])

# BNY_WITH_PKG(NAME, VARIABLE, PURPOSE, MODULE, PACKAGE)
# --with-NAME through pkg-config: VARIABLE_CFLAGS, VARIABLE_LIBS, have_NAME, version_NAME.
AC_DEFUN([BNY_WITH_PKG], [
  BNY_WITH_ARG([$1], [$3])
  AS_IF([test "x$with_$1" != xno],
    [PKG_CHECK_MODULES([$2], [$4],
      [have_$1=yes
       version_$1=`$PKG_CONFIG --modversion "$4" 2>/dev/null`],
      [have_$1=no])])
  BNY_WITH_END([$1], [apt-get install $5])
])

# BNY_WITH_MPI
# MPI_CFLAGS, MPI_LIBS, MPI_REQUIRES (a pkg-config module, or nothing), the conditional MPI, mpi_found.
AC_DEFUN([BNY_WITH_MPI], [
  BNY_WITH_ARG([mpi], [libbanyan-mpi and tools under mpirun])
  AC_ARG_VAR([MPICC], [MPI compiler wrapper, asked for its flags where pkg-config knows no MPI])
  MPI_REQUIRES=
  AS_IF([test "x$with_mpi" != xno],
    [PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes MPI_REQUIRES=ompi-c],
      [PKG_CHECK_MODULES([MPI], [mpi-c], [have_mpi=yes MPI_REQUIRES=mpi-c], [have_mpi=no])])
     AS_IF([test $have_mpi = yes],
       [mpi_found="`$PKG_CONFIG --modversion $MPI_REQUIRES 2>/dev/null`, module $MPI_REQUIRES"],
       [AC_CHECK_PROGS([MPICC], [mpicc])
        AS_IF([test -n "$MPICC"],
          [AC_MSG_CHECKING([whether $MPICC says its flags])
           AS_IF([MPI_CFLAGS=`$MPICC --showme:compile 2>/dev/null` && MPI_LIBS=`$MPICC --showme:link 2>/dev/null`],
             [have_mpi=yes mpi_found="$MPICC"])
           AC_MSG_RESULT([$have_mpi])])])])
  BNY_WITH_END([mpi], [apt-get install libopenmpi-dev openmpi-bin])
  AC_SUBST([MPI_CFLAGS])
  AC_SUBST([MPI_LIBS])
  AC_SUBST([MPI_REQUIRES])
  MPI_PC_CFLAGS= MPI_PC_LIBS=
  AS_IF([test -z "$MPI_REQUIRES"], [MPI_PC_CFLAGS=$MPI_CFLAGS MPI_PC_LIBS=$MPI_LIBS])
  AC_SUBST([MPI_PC_CFLAGS])
  AC_SUBST([MPI_PC_LIBS])
  AM_CONDITIONAL([MPI], [test $have_mpi = yes])
])

# BNY_WITH_CUDA
# Only looks: NVCC, version_cuda.
AC_DEFUN([BNY_WITH_CUDA], [
  BNY_WITH_ARG([cuda], [CUDA device])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AS_IF([test "x$with_cuda" != xno],
    [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH$PATH_SEPARATOR${CUDA_HOME:-/usr/local/cuda}/bin])
     AS_IF([test -n "$NVCC"],
       [have_cuda=yes
        version_cuda=[`"$NVCC" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'`]])])
  BNY_WITH_END([cuda], [install the CUDA toolkit, and set NVCC if it is not in PATH])
])
