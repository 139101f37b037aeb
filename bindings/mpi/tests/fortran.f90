! Collectives of Fortran, out of place and in place, by the module mpi or, with -DNEW, by mpi_f08. Prints a sum over everything received.
program collectives
#ifdef NEW
  use mpi_f08
#else
  use mpi
#endif
  use, intrinsic :: iso_c_binding
  implicit none
#ifdef NEW
  type(MPI_Comm) :: half
#else
  integer :: half
#endif
  integer, parameter :: n = 1000
  integer :: rank, ranks, ierr, i, round, root, given
  integer, allocatable :: counts(:), places(:)
  double precision, allocatable :: x(:), y(:)
  integer, allocatable :: k(:), l(:)
  complex :: z(n), w(n)
  double precision :: total, all
  type(c_ptr) :: memory
  real, pointer :: exported(:)

  call MPI_Init_thread(MPI_THREAD_FUNNELED, given, ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, ierr)
  allocate (x(n*ranks), y(n*ranks), k(n*ranks), l(n*ranks), counts(ranks), places(ranks))
  total = 0
  do round = 1, 20
    root = mod(round, ranks)
    do i = 1, n*ranks
      x(i) = mod(i*round + rank, 7)
      k(i) = mod(i + rank*round, 11)
    end do
    y = 0; l = 0
    z = cmplx(rank, round)
    call MPI_Allreduce(x, y, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    total = total + sum(y)
    call MPI_Allreduce(MPI_IN_PLACE, k, n, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
    total = total + sum(k)
    call MPI_Allreduce(z, w, n, MPI_COMPLEX, MPI_SUM, half, ierr)
    total = total + real(sum(w)) + aimag(sum(w))
    ! MPICH 4.0 alone ends with a fault for other roots.
    if (rank == 0) then
      call MPI_Reduce(MPI_IN_PLACE, x, n, MPI_DOUBLE_PRECISION, MPI_MIN, 0, MPI_COMM_WORLD, ierr)
    else
      call MPI_Reduce(x, y, n, MPI_DOUBLE_PRECISION, MPI_MIN, 0, MPI_COMM_WORLD, ierr)
    end if
    total = total + sum(x)
    call MPI_Bcast(x, n, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    total = total + sum(x(1:n))
    call MPI_Allgather(k, n, MPI_INTEGER, l, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
    total = total + sum(l)
    call MPI_Allgather(MPI_IN_PLACE, 0, MPI_INTEGER, l, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
    total = total + sum(l)
    do i = 1, ranks
      counts(i) = n - i
      places(i) = (i - 1)*n
    end do
    call MPI_Allgatherv(x, counts(rank + 1), MPI_DOUBLE_PRECISION, y, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
    total = total + sum(y)
    call MPI_Gather(k, n, MPI_INTEGER, l, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
    total = total + sum(l)
    call MPI_Scatter(y, n, MPI_DOUBLE_PRECISION, x, n, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    total = total + sum(x)
    call MPI_Alltoall(k, n, MPI_INTEGER, l, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
    total = total + sum(l*counts(1))
    call MPI_Reduce_scatter_block(y, x, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    total = total + sum(x(1:n))
    counts = n
    call MPI_Reduce_scatter(k, l, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
    total = total + sum(l(1:n))
    call MPI_Barrier(half, ierr)
  end do
  call MPI_Alloc_mem(int(4*n, MPI_ADDRESS_KIND), MPI_INFO_NULL, memory, ierr)
  call c_f_pointer(memory, exported, [n])
  exported = real(rank + 1)
  call MPI_Allreduce(MPI_IN_PLACE, exported, n, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
  total = total + sum(exported)
  call MPI_Free_mem(exported, ierr)
  call MPI_Reduce(total, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD, ierr)
  if (rank == 0) print '(f0.1)', all
  call MPI_Comm_free(half, ierr)
  call MPI_Finalize(ierr)
end program
