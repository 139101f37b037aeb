"""Faults and bad input: each ends with an exception that says what and who."""

from conftest import Ranks


def test_a_killed_rank_is_named_and_the_others_go_on(ranks: Ranks) -> None:
    done = ranks(
        """
        comm = ringbell.init(timeout=20)
        x = np.ones(1 << 20, np.float32)
        comm.all_reduce(x)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(10000):
                comm.all_reduce(x, op="max")
            raise AssertionError("rank 1 is dead")
        except errors.PeerFailed as e:
            assert (e.peers, e.rank, e.status) == ((1,), comm.rank, "PEER_FAILED"), e
            assert "rank 1" in str(e) and isinstance(e, ConnectionError)
        left = comm.shrink(10)
        assert (left.size, list(left.job_ranks)) == (2, [0, 2])
        y = np.array([comm.rank + 1.0])
        left.all_reduce(y)
        assert y[0] == 4
        print("went on", flush=True)
        """,
        3,
        keep_going=True,
        code=137,
    )
    assert done.stdout.count("went on") == 2


def test_settings_that_differ_are_named(ranks: Ranks) -> None:
    ranks(
        """
        try:
            ringbell.init(timeout=20, deterministic=os.environ["RINGBELL_RANK"] == "1")
            raise AssertionError("the settings differ")
        except errors.Mismatch as e:
            assert e.peers == (1,) and "`deterministic` at 1, rank 0 at 0" in str(e), e
        """,
        2,
    )


def test_ranks_that_differ_or_are_late_are_named(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        try:
            comm.all_reduce(np.ones(8 if comm.rank else 9, np.float32))
            raise AssertionError("the counts differ")
        except errors.Mismatch as e:
            assert e.peers in ((0,), (1,)) and "count" in str(e), e
        comm = comm.shrink(10)
        if comm.rank == 0:
            try:
                comm.barrier(timeout=0.3)
                raise AssertionError("rank 1 does not come")
            except errors.TimedOut as e:
                assert e.peers == (1,) and isinstance(e, TimeoutError), e
        else:
            time.sleep(0.8)
            try:
                comm.barrier(timeout=0.3)
                raise AssertionError("the others have given up")
            except (errors.TimedOut, errors.Aborted, errors.PeerFailed):
                pass
        """,
        2,
        keep_going=True,
    )


def test_arrays_that_no_operation_takes(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        def refused(kind, call):
            try:
                call()
            except kind as e:
                return str(e)
            raise AssertionError(f"accepted, not {kind}")
        f = np.float32
        refused(BufferError, lambda: comm.all_reduce(np.ones((8, 8), f)[:, ::2]))
        refused(BufferError, lambda: comm.all_reduce(np.asfortranarray(np.ones((8, 8), f))))
        refused(BufferError, lambda: comm.all_reduce(b"12345678"))
        locked = np.ones(4, f); locked.flags.writeable = False
        refused(BufferError, lambda: comm.all_reduce(locked))
        for unknown in (np.ones(4, np.complex64), np.ones(4, np.clongdouble), np.ones(4, ">f4"), np.ones(4, bool)):
            assert "element type" in refused(TypeError, lambda: comm.all_reduce(unknown))
        refused((TypeError, BufferError), lambda: comm.all_reduce(np.array([object()])))
        refused((TypeError, BufferError), lambda: comm.all_reduce(3.5))
        assert "I32" in refused(errors.InvalidArgument, lambda: comm.all_reduce(np.ones(4, f), np.ones(4, np.int32)))
        assert "9 elements" in refused(errors.InvalidArgument, lambda: comm.all_gather(np.ones(4, f), np.ones(9, f)))
        refused(errors.InvalidArgument, lambda: comm.all_reduce(np.ones(4, f), np.ones(5, f)))
        refused(errors.InvalidArgument, lambda: comm.all_reduce(np.ones(4, f), op="mean"))
        assert "bits of integers" in refused(errors.InvalidArgument, lambda: comm.all_reduce(np.ones(4, f), op="xor"))
        refused(errors.InvalidArgument, lambda: comm.broadcast(np.ones(4, f), root=2))
        refused(errors.InvalidArgument, lambda: comm.broadcast(np.ones(4, f), algo="pigeon"))
        refused(errors.InvalidArgument, lambda: comm.send(np.ones(4, f), 7))
        refused(errors.InvalidArgument, lambda: comm.gather(np.ones(4, f), None, comm.rank))
        for wrong in (0.0, -1.0, float("nan"), 1e300):
            refused(ValueError, lambda: comm.barrier(timeout=wrong))
        # Nothing of that has reached the NIC.
        comm.all_reduce(np.zeros(0, f))
        x = np.array(3.0, f)
        comm.all_reduce(x)
        assert x == 6
        """,
        2,
    )


def test_ctrl_c_ends_waits(ranks: Ranks) -> None:
    ranks(
        """
        import threading
        comm = ringbell.init(timeout=20)
        def interrupted(call):
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            start = time.monotonic()
            try:
                call()
            except KeyboardInterrupt:
                assert time.monotonic() - start < 5
                return
            raise AssertionError("it was not interrupted")
        def meet(name):
            # Without the communicator: neither rank goes on before the other has been interrupted.
            mark = lambda rank: f"{sys.argv[0]}.{name}.{rank}"
            open(mark(comm.rank), "w").close()
            while not os.path.exists(mark(1 - comm.rank)):
                time.sleep(0.01)
        box = np.zeros(4)
        interrupted(lambda: comm.recv(box, 1 - comm.rank, 5))
        # A message that has met no partner was cancelled: the communicator works on, and the memory is free.
        comm.all_reduce(box)
        request = comm.irecv(box, 1 - comm.rank, 6)
        interrupted(request.wait)
        meet("waited")
        comm.send(np.ones(4), 1 - comm.rank, 6)
        assert request.wait() == 32 and box[0] == 1
        # A collective has begun on every rank: the interrupted rank aborts the communicator, and is named.
        if comm.rank == 0:
            interrupted(comm.barrier)
            meet("given up")
        else:
            meet("given up")
            try:
                comm.barrier()
                raise AssertionError("rank 0 has given up")
            except (errors.Aborted, errors.PeerFailed) as e:
                assert e.peers == (0,), e
        """,
        2,
        keep_going=True,
    )


def test_a_forked_child_is_refused_and_leaves_the_parent_alone(ranks: Ranks) -> None:
    ranks(
        """
        import gc
        comm = ringbell.init(timeout=20)
        x = np.ones(1000)
        registered = comm.nic.register(x)
        buffer = comm.nic.alloc_host(10)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                comm.all_reduce(x)
            except RuntimeError as e:
                code = 0 if "fork" in str(e) else 2
            del comm, registered, buffer
            gc.collect()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        comm.all_reduce(x)
        assert (x == 2).all()
        comm.barrier()
        """,
        2,
    )


def test_a_process_without_a_launcher_is_told_how_to_start(ranks: Ranks) -> None:
    ranks(
        """
        for name in [n for n in os.environ if n.startswith("RINGBELL_")]:
            del os.environ[name]
        try:
            ringbell.init()
            raise AssertionError("there is no job")
        except errors.JobError as e:
            assert "RINGBELL_RANK" in str(e) and e.status == "JOB"
        """,
        1,
    )


def test_a_rank_that_never_comes_is_named(ranks: Ranks) -> None:
    ranks(
        """
        if os.environ["RINGBELL_RANK"] == "1":
            sys.exit(0)
        try:
            ringbell.init(init_timeout=5)
            raise AssertionError("rank 1 has gone")
        except errors.JobError as e:
            assert e.peers == (1,), (e, e.peers)
        """,
        2,
        keep_going=True,
    )


def test_exit_with_outstanding_operations_ends(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=20)
        requests = [comm.irecv(np.zeros(100), None, t) for t in range(10)]
        comm.barrier()
        """,
        2,
    )


def test_threads_use_one_communicator(ranks: Ranks) -> None:
    ranks(
        """
        import threading
        comm = ringbell.init(timeout=20)
        shared = np.arange(3000, dtype=np.int64)
        bad = []
        def talk(tag):
            try:
                got = np.zeros(3000, np.int64)
                for _ in range(50):
                    # One source for all threads: its registration is shared, and made anew between them.
                    comm.sendrecv(shared, 1 - comm.rank, got, 1 - comm.rank, tag)
                    assert (got == shared).all()
            except BaseException as e:
                bad.append(e)
        threads = [threading.Thread(target=talk, args=(t,)) for t in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not bad, bad
        comm.barrier()
        """,
        2,
    )


def test_requests_that_nothing_waits_for_yet_do_not_fill_the_queue(ranks: Ranks) -> None:
    ranks(
        """
        comm = ringbell.init(timeout=10)
        # More than the queue has slots, in one thread.
        xs = [np.full(10, comm.rank + 1.0) for _ in range(700)]
        requests = [comm.iall_reduce(x) for x in xs]
        for request in requests:
            request.wait()
        assert all((x == 3).all() for x in xs)
        # An error is still there for those that wait late.
        box = np.zeros(4)
        late = comm.irecv(box, 1 - comm.rank, 9, timeout=0.2)
        for x in xs[:200]:
            comm.all_reduce(x)
        time.sleep(0.3)
        for x in xs:
            comm.all_reduce(x)
        try:
            late.wait()
            raise AssertionError("no rank has sent")
        except errors.TimedOut:
            pass
        """,
        2,
    )


def test_a_nic_has_as_many_communicators_as_its_setting_allows(ranks: Ranks) -> None:
    ranks(
        """
        job = ringbell.Job.from_env()
        comm = ringbell.init(job=job, nic=ringbell.Nic(job=job, max_queues=2))
        part = comm.split(0)
        try:
            comm.split(0)
            raise AssertionError("the NIC has two queues")
        except errors.HostError as e:
            assert "all 2 queues are in use; raise the setting `max_queues`" in str(e), e
        part.barrier()
        del part
        comm.split(0).barrier()
        """,
        2,
    )
    ranks(
        """
        job = ringbell.Job.from_env()
        comm = ringbell.init(job=job, nic=ringbell.Nic(job=job, max_queues=80))
        parts = [comm.split(0) for _ in range(70)]
        for i, part in enumerate(parts):
            x = np.full(3, i + comm.rank)
            part.all_reduce(x)
            assert (x == 2 * i + 1).all(), (i, x)
        """,
        2,
    )
