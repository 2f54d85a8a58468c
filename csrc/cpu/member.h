// One thread's place in its team: all that kernels see of threads. See kernels/share.inc.h for what they do with it.
#pragma once

namespace embed::cpu {

class Team;

struct Member {
  Team* team;
  int* next;  // the next task of the loop that is under way; 0 between loops
  int index, threads;
};

// Waits until every member of the team has come here.
void await_all(const Member& me);

}  // namespace embed::cpu
