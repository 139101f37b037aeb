! Random messages of Fortran on random communicators, by the module mpi or, with -DNEW, by mpi_f08. Its argument is a seed; with a second one, no call gives indices. Prints a sum over everything received by each rank.
#ifdef NEW
#define HANDLE(kind) type(kind)
#define SOURCE(s) s%MPI_SOURCE
#define TAG(s) s%MPI_TAG
#define SOURCES(s, i) s(i)%MPI_SOURCE
#define TAGS(s, i) s(i)%MPI_TAG
#else
#define HANDLE(kind) integer
#define SOURCE(s) s(MPI_SOURCE)
#define TAG(s) s(MPI_TAG)
#define SOURCES(s, i) s(MPI_SOURCE, i)
#define TAGS(s, i) s(MPI_TAG, i)
#endif
program messages
#ifdef NEW
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer, parameter :: most = 16, longest = 20000
  HANDLE(MPI_Comm) :: comm
  HANDLE(MPI_Request) :: requests(2*most + 3)
  HANDLE(MPI_Datatype) :: pairs
#ifdef NEW
  type(MPI_Status) :: status, statuses(2*most + 3), some(2*most + 3)
#else
  integer :: status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 2*most + 3), some(MPI_STATUS_SIZE, 2*most + 3)
#endif
  integer(8) :: state
  integer :: me, all, rank, ranks, right, left, ierr, round, seed, i
  integer :: a(longest, 2*most + 3), x(longest), y(longest)
  double precision :: total
  double precision, allocatable :: totals(:)
  character(20) :: argument
  logical :: own, plain

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, all, ierr)
  call get_command_argument(1, argument)
  read (argument, *) seed
  ! mpi_f08 of MPICH 4.0 gives wrong indices.
  plain = command_argument_count() > 1
  ! Two integers with a gap of one.
  call MPI_Type_vector(200, 2, 3, MPI_INTEGER, pairs, ierr)
  call MPI_Type_commit(pairs, ierr)
  total = 0
  do round = 1, 60
    state = seed*1000003_8 + round
    i = drawn(2)
    call choose(drawn(8))
    i = drawn(6)
    if (own .or. comm == MPI_COMM_WORLD) then
      select case (i)
      case (0, 1)
        call many()
      case (2)
        call probed()
      case (3)
        call around()
      case (4)
        call persistent()
      case (5)
        call placed()
      end select
    end if
    if (own) call MPI_Comm_free(comm, ierr)
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
  end do
  call MPI_Type_free(pairs, ierr)
  allocate (totals(all))
  call MPI_Gather(total, 1, MPI_DOUBLE_PRECISION, totals, 1, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierr)
  if (me == 0) print '(f0.1)', totals
  call MPI_Finalize(ierr)

contains

  ! The same numbers on all ranks.
  integer function drawn(below)
    integer, intent(in) :: below
    state = iand(state*1103515245_8 + 12345_8, 2147483647_8)
    drawn = int(mod(state/65536, int(below, 8)))
  end function

  ! A communicator of the round; `own`: it is to be freed, and this rank is in it.
  subroutine choose(kind)
    integer, intent(in) :: kind
    HANDLE(MPI_Group) :: group, part
    HANDLE(MPI_Comm) :: half, between
    integer :: range(3, 1)
    own = .true.
    select case (kind)
    case (0)
      call MPI_Comm_dup(MPI_COMM_WORLD, comm, ierr)
    case (1)
      call MPI_Comm_split(MPI_COMM_WORLD, mod(me, 2), -me, comm, ierr)
    case (2)
      call MPI_Cart_create(MPI_COMM_WORLD, 2, [all, 1], [.true., .false.], .true., comm, ierr)
    case (3)
      ! All but the last rank, the first one last.
      call MPI_Comm_group(MPI_COMM_WORLD, group, ierr)
      range(:, 1) = [0, all - 2, 1]
      call MPI_Group_range_incl(group, 1, range, part, ierr)
      call MPI_Comm_create(MPI_COMM_WORLD, part, comm, ierr)
      call MPI_Group_free(group, ierr)
      call MPI_Group_free(part, ierr)
      own = comm /= MPI_COMM_NULL
    case (4)
      call MPI_Comm_split(MPI_COMM_WORLD, merge(1, 0, me == 0), me, half, ierr)
      call MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, merge(1, 0, me == 0), 9, between, ierr)
      call MPI_Intercomm_merge(between, me == 0, comm, ierr)
      call MPI_Comm_free(half, ierr)
      call MPI_Comm_free(between, ierr)
    case default
      comm = MPI_COMM_WORLD
      own = .false.
    end select
    if (comm == MPI_COMM_NULL) return
    call MPI_Comm_rank(comm, rank, ierr)
    call MPI_Comm_size(comm, ranks, ierr)
    right = mod(rank + 1, ranks)
    left = mod(rank + ranks - 1, ranks)
  end subroutine

  subroutine received(s, at)
#ifdef NEW
    type(MPI_Status), intent(in) :: s
#else
    integer, intent(in) :: s(MPI_STATUS_SIZE)
#endif
    integer, intent(in) :: at(longest)
    integer :: n
    call MPI_Get_count(s, MPI_INTEGER, n, ierr)
    if (n == MPI_UNDEFINED) n = 0
    total = total + 7*SOURCE(s) + 3*TAG(s) + n
    do n = 1, n
      total = total + at(n)
    end do
  end subroutine

  subroutine fill(at, n, with)
    integer, intent(out) :: at(longest)
    integer, intent(in) :: n, with
    integer :: k
    do k = 1, n
      at(k) = mod(k*7 + with, 1000)
    end do
  end subroutine

  ! Nonblocking messages between random ranks, with a request of the library below, waited for in one of seven ways.
  subroutine many()
    integer :: m, n, k, from, to, count, label, way, any, index, done, where(2*most + 3), ones, sum
    integer :: is(2*most + 3), pass
    logical :: flag
    integer(8) :: before
    n = 0
    is = 0
    any = drawn(2)
    way = drawn(7)
    if (plain) way = merge(way, 6, way < 2)
    m = 1 + drawn(most)
    before = state
    do pass = 1, 2
      state = before
      do k = 1, m
        from = mod(drawn(1000), ranks)
        to = mod(drawn(1000), ranks)
        label = drawn(3)
        count = merge(drawn(40), drawn(longest), drawn(3) > 0)
        if (pass == 1 .and. to == rank) then
          n = n + 1
          is(n) = 1
          if (any == 1) then
            call MPI_Irecv(a(:, n), longest, MPI_INTEGER, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, requests(n), ierr)
          else
            call MPI_Irecv(a(:, n), longest, MPI_INTEGER, from, label, comm, requests(n), ierr)
          end if
        end if
        if (pass == 2 .and. from == rank) then
          n = n + 1
          call fill(a(:, n), count, k)
          select case (mod(k, 3))
          case (0)
            call MPI_Issend(a(:, n), count, MPI_INTEGER, to, label, comm, requests(n), ierr)
          case default
            call MPI_Isend(a(:, n), count, MPI_INTEGER, to, label, comm, requests(n), ierr)
          end select
        end if
      end do
    end do
    ones = rank + 1
    n = n + 1
    call MPI_Iallreduce(ones, sum, 1, MPI_INTEGER, MPI_SUM, comm, requests(n), ierr)
    n = n + 1
    call MPI_Irecv(x, 1, MPI_INTEGER, left, 99, comm, requests(n), ierr)
    call MPI_Cancel(requests(n), ierr)
    select case (way)
    case (0)
      call MPI_Waitall(n, requests, statuses, ierr)
    case (1)
      do k = n, 1, -1
        if (is(k) == 0) then
          call MPI_Wait(requests(k), MPI_STATUS_IGNORE, ierr)
        else
#ifdef NEW
          call MPI_Wait(requests(k), statuses(k), ierr)
#else
          call MPI_Wait(requests(k), statuses(:, k), ierr)
#endif
        end if
      end do
    case (2, 3)
      do
        flag = .true.
        if (way == 2) call MPI_Waitany(n, requests, index, status, ierr)
        if (way == 3) call MPI_Testany(n, requests, index, flag, status, ierr)
        if (.not. flag) cycle
        ! MPICH 4.0 gives MPI_UNDEFINED + 1.
        if (index < 1) exit
#ifdef NEW
        statuses(index) = status
#else
        statuses(:, index) = status
#endif
      end do
    case (4, 5)
      do
        if (way == 4) call MPI_Waitsome(n, requests, done, where, some, ierr)
        if (way == 5) call MPI_Testsome(n, requests, done, where, some, ierr)
        if (done == MPI_UNDEFINED) exit
        do k = 1, done
#ifdef NEW
          statuses(where(k)) = some(k)
#else
          statuses(:, where(k)) = some(:, k)
#endif
        end do
      end do
    case default
      flag = .false.
      do while (.not. flag)
        call MPI_Testall(n, requests, flag, statuses, ierr)
      end do
    end select
    do k = 1, n
      if (requests(k) /= MPI_REQUEST_NULL) total = total + 1e6
      if (is(k) == 0) cycle
#ifdef NEW
      call received(statuses(k), a(:, k))
#else
      call received(statuses(:, k), a(:, k))
#endif
    end do
    total = total + sum
  end subroutine

  ! Everyone sends to everyone, and receives what a probe finds.
  subroutine probed()
    HANDLE(MPI_Message) :: message
    HANDLE(MPI_Request) :: request
    integer :: way, count, k, n
    logical :: flag
    way = drawn(4)
    count = merge(drawn(40), drawn(longest), drawn(2) > 0)
    call fill(x, count, rank)
    do k = 0, ranks - 1
      call MPI_Isend(x, count, MPI_INTEGER, k, rank, comm, requests(k + 1), ierr)
    end do
    do k = 0, ranks - 1
      flag = .false.
      select case (way)
      case (0)
        call MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, status, ierr)
      case (1)
        do while (.not. flag)
          call MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, flag, status, ierr)
        end do
      case (2)
        call MPI_Mprobe(k, k, comm, message, status, ierr)
      case (3)
        do while (.not. flag)
          call MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, flag, message, status, ierr)
        end do
      end select
      call MPI_Get_count(status, MPI_INTEGER, n, ierr)
      if (way < 2) call MPI_Recv(y, n, MPI_INTEGER, SOURCE(status), TAG(status), comm, status, ierr)
      if (way == 2) call MPI_Mrecv(y, n, MPI_INTEGER, message, status, ierr)
      if (way == 3) then
        call MPI_Imrecv(y, n, MPI_INTEGER, message, request, ierr)
        call MPI_Wait(request, status, ierr)
      end if
      if (way > 1 .and. message /= MPI_MESSAGE_NULL) total = total + 1e6
      call received(status, y)
    end do
    call MPI_Waitall(ranks, requests, MPI_STATUSES_IGNORE, ierr)
  end subroutine

  ! Blocking calls around the ring.
  subroutine around()
    integer :: count, way
    integer :: to, from
    count = drawn(longest)
    way = drawn(4)
    call fill(x, count, rank)
    to = right
    from = left
    if (drawn(2) == 1) then
      if (rank == ranks - 1) to = MPI_PROC_NULL
      if (rank == 0) from = MPI_PROC_NULL
    end if
    y = 0
    select case (way)
    case (0)
      call MPI_Sendrecv(x, count, MPI_INTEGER, to, 1, y, longest, MPI_INTEGER, from, 1, comm, status, ierr)
      call received(status, y)
    case (1)
      call MPI_Sendrecv_replace(x, count, MPI_INTEGER, to, 1, from, MPI_ANY_TAG, comm, status, ierr)
      if (from == left) call received(status, x)
    case default
      call MPI_Irecv(y, longest, MPI_INTEGER, from, 2, comm, requests(1), ierr)
      if (way == 2) call MPI_Ssend(x, count, MPI_INTEGER, to, 2, comm, ierr)
      if (way == 3) call MPI_Send(x, count, MPI_INTEGER, to, 2, comm, ierr)
      call MPI_Wait(requests(1), status, ierr)
      ! MPICH 4.0 gives no status of MPI_PROC_NULL here.
      if (from == left) call received(status, y)
    end select
  end subroutine

  ! Persistent requests, and elements of a derived type.
  subroutine persistent()
    integer :: k, n
    logical :: flag
    call MPI_Send_init(x, 1, pairs, right, 3, comm, requests(1), ierr)
    call MPI_Recv_init(y, 400, MPI_INTEGER, left, 3, comm, requests(2), ierr)
    do k = 1, 3
      call fill(x, 600, rank + k)
      if (k == 2) then
        call MPI_Start(requests(2), ierr)
        call MPI_Start(requests(1), ierr)
      else
        call MPI_Startall(2, requests, ierr)
      end if
      flag = .false.
      do while (.not. flag)
        call MPI_Request_get_status(requests(2), flag, status, ierr)
      end do
      call MPI_Get_count(status, MPI_INTEGER, n, ierr)
      total = total + n
      call MPI_Waitall(2, requests, statuses, ierr)
      total = total + SOURCES(statuses, 2) + TAGS(statuses, 2) + sum(y(1:400))
      flag = .false.
      do while (.not. flag)
        call MPI_Test(requests(1), flag, MPI_STATUS_IGNORE, ierr)
      end do
    end do
    call MPI_Request_free(requests(1), ierr)
    call MPI_Request_free(requests(2), ierr)
    if (requests(1) /= MPI_REQUEST_NULL) total = total + 1e6
  end subroutine

  ! Elements by their addresses from MPI_BOTTOM on, to the own rank and to the next one.
  subroutine placed()
    HANDLE(MPI_Datatype) :: ends
    integer(MPI_ADDRESS_KIND) :: at(2)
    integer :: count
    count = 1 + drawn(longest/2)
    call fill(x, longest, rank)
    y = 0
    call MPI_Get_address(x(1), at(1), ierr)
    call MPI_Get_address(x(longest/2 + 1), at(2), ierr)
    call MPI_Type_create_hindexed(2, [count, count], at, MPI_INTEGER, ends, ierr)
    call MPI_Type_commit(ends, ierr)
    call MPI_Irecv(y, longest, MPI_INTEGER, left, 4, comm, requests(1), ierr)
    call MPI_Send(MPI_BOTTOM, 1, ends, right, 4, comm, ierr)
    call MPI_Wait(requests(1), status, ierr)
    call received(status, y)
    call MPI_Isend(y, 2*count, MPI_INTEGER, rank, 5, comm, requests(1), ierr)
    call MPI_Recv(MPI_BOTTOM, 1, ends, rank, 5, comm, MPI_STATUS_IGNORE, ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
    call MPI_Type_free(ends, ierr)
    total = total + sum(x(1:count)) + sum(x(longest/2 + 1:longest/2 + count))
  end subroutine
end program
