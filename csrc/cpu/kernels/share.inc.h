// Loops whose rounds a team shares. Who computes a round depends on who is free; what it computes must not.

// Calls task(i) for each i in [0, count), once, on whichever member is free, in ascending order on each. Every member
// of the team calls this; it returns when all tasks are done.
template <class Task>
static INLINE void share(const Member& me, int count, const Task& task) {
  for (int i; (i = __atomic_fetch_add(me.next, 1, __ATOMIC_RELAXED)) < count;) task(i);
  await_all(me);
}

// The same for rows, several at a time, since taking a task costs as much as a short row.
template <class Task>
static INLINE void share_rows(const Member& me, int rows, const Task& task) {
  constexpr int kMost = 16;
  const int even = (rows + 2 * me.threads - 1) / (2 * me.threads), each = even < kMost ? even : kMost;
  share(me, each ? (rows + each - 1) / each : 0, [&](int i) INLINE_LAMBDA {
    const int end = (i + 1) * each < rows ? (i + 1) * each : rows;
    for (int row = i * each; row < end; ++row) task(row);
  });
}
