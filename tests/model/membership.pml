/* How survivors of a broken epoch agree (csrc/plan/survivor_agreement.h), for four members.
 *
 * Members may end (at most DEATHS), be divided by a partition (PARTITION: a mask of those on one
 * side), and give up the forming of a world (at most GIVE_UPS times in all), at any moment. Between
 * two members one message is on its way at a time, with all that its sender knew when it was sent.
 * A member that has decided may form the world as soon as all its members have decided on it.
 *
 * Whoever hears of a world that was formed with it agrees anew from there, which is not modelled
 * further, and tells others of it.
 *
 * Signs of life repeat what a member knows, so that nothing is unknown for ever to those with whom
 * it stays. They are modelled where they tell something new: once nothing else happens, or at any
 * moment (SPEAK_EARLY), which is more to explore. Answers add nothing to that: they are given to
 * signs of life. Time does not pass otherwise: nobody falls silent but across a partition, and
 * nobody gives up waiting for what a member that is heard has to say.
 *
 * Safety (assertions): nobody forms a world while another one lives that is not the same; a number
 * stands for one world. With a partition that comes later, whoever has formed a world may find that
 * others never do, which go on without it: then no two worlds are formed by all their members.
 * Progress (the last assertion): when nothing happens any more, every member
 * that lives, on the side that has the majority, is in the world or knows that it is to be.
 *
 * Explored by spin 6.5.2 (pan -DSAFETY), without an error. Exhaustively (-DCOLLAPSE): one end and no
 * world given up, 984,030 states and 302 MB. With states known by a hash (-DHC4), which leaves out
 * some: 302 of the 984,030, so of the largest here perhaps one or two in a hundred. Two ends and a
 * world given up, 53.5 million states and 3.1 GB, in 12 minutes beside other work; without an end a
 * partition 1|3 from the start, 7.1 million states, and 2|2, 6.7 million. Not explored: a partition
 * that comes later (LATER), and signs of life at any moment with more than one end. Both occur in
 * random runs.
 *
 * `spin -DTRACE -DTRACES=<n> -T -n<seed> membership.pml` prints <n> random runs, one event to a
 * line. Ends, worlds given up and a partition, at once or later, are at random in each:
 *
 *   begin S, part S     all agree; from now on two sides do not reach each other (S: the mask of one)
 *   die P               P ends
 *   send P Q, speak P Q all that P knows is on its way to Q; as a sign of life, or an answer to one
 *   receive P Q         what was on its way from P arrives at Q
 *   miss P Q            it does not, as P has ended
 *   ended P Q           P hears that Q has ended
 *   unreachable P Q     P does not reach Q
 *   give_up P E         P could not form the decided world number E
 *   form P              P has formed the decided world
 *   has_gone_on P Q     P tells Q that the epoch has gone on
 *   = P W E ...         after an event of P: the mask and the number of the world on which it has
 *                       decided (0 0: none, -1 0: it has stopped), and its view: proposal, the masks
 *                       ended and broken, reached[0..3], and of each world given up the mask, its
 *                       number and the mask of those that have decided on it
 *   rest                the run is over
 *
 * tests/unit/plan/survivor_traces_test.cpp does the same to the objects of the library, and compares.
 * membership.traces keeps twelve of seed 2; tests/model/replay makes others.
 */
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef GIVE_UPS
#ifdef TRACE
#define GIVE_UPS 3
#endif
#endif
#ifndef GIVE_UPS
#define GIVE_UPS 1
#endif
#ifndef PARTITION
#define PARTITION 0
#endif
#ifndef SPEAK_EARLY
#ifdef TRACE
#define SPEAK_EARLY 1
#else
#define SPEAK_EARLY 0
#endif
#endif
#ifndef LATER
#define LATER 0
#endif
#ifdef TRACE
#define SAY(text) text
#else
#define SAY(text) skip
#endif

#define N 4
#define ALL 15
#define BIT(set, i) (((set) >> (i)) & 1)
#define ONE(i) (1 << (i))
#define LINK(observer, member) (1 << ((observer) * N + (member)))
#define COUNT(set) (BIT(set, 0) + BIT(set, 1) + BIT(set, 2) + BIT(set, 3))
#define LOWEST(set) ((set) & (-(set)))
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define SAME_SIDE(p, q) (BIT(side, p) == BIT(side, q))

/* SurvivorView; a world given up is a byte, its number and who has decided on it, at the index that
 * is the mask of its members. */
typedef View {
  byte proposal;
  byte ended;
  unsigned broken : 16;
  byte given_up[16];
  byte reached[N];
}
typedef Outcome {
  byte proposal; /* 0: nothing was said */
  byte survivors;
  byte ended;
  unsigned possible : 16; /* masks of worlds */
}
typedef Member {
  View view;
  Outcome own;
  Outcome said[N];
  byte decided;   /* the mask of the world's members; 0: undecided */
  byte untold;    /* those that do not know the view */
  byte formed;    /* the mask of the world that it is in */
  bool stopped;   /* for good: minority, or expelled */
  byte to_join;   /* a world that others have formed with it */
}
typedef Row {
  View view[N];
  bool on_way[N];
}

Member member[N];
Row way[N];            /* way[p].view[q]: from p to q */
byte dead;
byte deaths = DEATHS;
byte give_ups = GIVE_UPS;
byte decided_by[16];   /* of each number: who has ever decided on it */
byte world_of[16];     /* its members */
byte lives;            /* the world that all its members have formed */
byte side = PARTITION; /* the members on one side; 0: no partition */
byte later = LATER;    /* those on one side of the partition that is to come */
unsigned news : 16;    /* who has something to tell whom by signs of life */

hidden byte i, j, k, best, key, best_key, removed, counted, present, number, epoch;
hidden byte adjacent[N];
hidden byte ends[N];
hidden byte has_quorum, same, behind, possible;
hidden View nothing;
hidden View v;           /* what compute() and merge() work on */
hidden Outcome result;
hidden byte said_survivors, said_ended;
hidden int said_possible;

#define ALIVE(p) (!BIT(dead, p))
#define WORLD_OF(p) (member[p].formed | member[p].to_join)
#define AGREES(p) (ALIVE(p) && !member[p].stopped && WORLD_OF(p) == 0)

#define COPY(from, to) \
  to.proposal = from.proposal; \
  to.ended = from.ended; \
  to.broken = from.broken; \
  i = 0; \
  do \
  :: i < 16 -> to.given_up[i] = from.given_up[i]; i++ \
  :: else -> break \
  od; \
  i = 0; \
  do \
  :: i < N -> to.reached[i] = from.reached[i]; i++ \
  :: else -> break \
  od
inline load(p) {
  COPY(member[p].view, v)
}

/* choose_survivors() and what else follows from a view. */
inline compute() {
  result.ended = v.ended;
  counted = ALL & ~v.ended;
  removed = 0;
  i = 0;
  do
  :: i < N ->
    ends[i] = 0;
    j = 0;
    do
    :: j < N ->
      if
      :: i != j && BIT(counted, i) && BIT(counted, j) &&
         ((v.broken & LINK(i, j)) != 0 || (v.broken & LINK(j, i)) != 0) -> ends[i] = ends[i] | ONE(j)
      :: else
      fi;
      j++
    :: else -> break
    od;
    adjacent[i] = ends[i];
    i++
  :: else -> break
  od;
  do
  :: best_key = 0;
    i = 0;
    do
    :: i < N ->
      if
      :: adjacent[i] != 0 ->
        key = COUNT(adjacent[i]) * 16 + i;
        j = 0;
        do
        :: j < N ->
          if
          :: BIT(adjacent[i], j) && (v.broken & LINK(i, j)) == 0 -> key = key + 4
          :: else
          fi;
          j++
        :: else -> break
        od;
        if
        :: key > best_key -> best_key = key; best = i
        :: else
        fi
      :: else
      fi;
      i++
    :: else -> break
    od;
    if
    :: best_key == 0 -> break
    :: else ->
      removed = removed | ONE(best);
      adjacent[best] = 0;
      i = 0;
      do
      :: i < N -> adjacent[i] = adjacent[i] & ~ONE(best); i++
      :: else -> break
      od
    fi
  od;
  i = 0;
  do
  :: i < N ->
    if
    :: BIT(removed, i) && (ends[i] & ~removed) == 0 -> removed = removed & ~ONE(i)
    :: else
    fi;
    i++
  :: else -> break
  od;
  result.survivors = counted & ~removed;
  result.possible = 0;
  i = 1;
  do
  :: i < 16 ->
    if
    :: v.given_up[i] != 0 ->
      possible = 1;
      j = 0;
      do
      :: j < N ->
        if
        :: BIT(i, j) && !BIT(v.given_up[i], j) && v.reached[j] > (v.given_up[i] >> 4) -> possible = 0
        :: else
        fi;
        j++
      :: else -> break
      od;
      if
      :: possible -> result.possible = result.possible | (1 << i)
      :: else
      fi
    :: else
    fi;
    i++
  :: else -> break
  od
}

inline majority_of(some, world, gone) {
  counted = (world) & ~(gone);
  present = counted & (some);
  if
  :: counted == 0 -> skip
  :: else ->
    if
    :: present == 0 || 2 * COUNT(present) < COUNT(counted) ||
       (2 * COUNT(present) == COUNT(counted) && LOWEST(present) != LOWEST(counted)) -> has_quorum = 0
    :: else
    fi
  fi
}

inline begin_proposal(p, n) {
  member[p].view.proposal = n;
  assert(member[p].view.proposal < 16);
  member[p].view.reached[p] = n;
  load(p);
  compute();
  member[p].own.proposal = n;
  member[p].own.survivors = result.survivors;
  member[p].own.ended = result.ended;
  member[p].own.possible = result.possible;
  member[p].untold = ALL & ~ONE(p)
}

inline withdraw(p) {
  epoch = member[p].view.given_up[member[p].decided] >> 4;
  epoch = MAX(epoch, member[p].own.proposal);
  member[p].view.given_up[member[p].decided] =
      (epoch << 4) | (member[p].view.given_up[member[p].decided] & 15) | ONE(p);
  member[p].decided = 0
}

inline decide(p) {
  if
  :: member[p].decided == 0 && BIT(member[p].own.survivors, p) ->
    same = 1;
    i = 0;
    do
    :: i < N ->
      if
      :: i != p && BIT(member[p].own.survivors, i) &&
         (member[p].said[i].proposal != member[p].own.proposal ||
          member[p].said[i].survivors != member[p].own.survivors ||
          member[p].said[i].ended != member[p].own.ended ||
          member[p].said[i].possible != member[p].own.possible) -> same = 0
      :: i != p && !BIT(member[p].own.survivors, i) &&
         !BIT(member[p].view.ended, i) && (member[p].view.broken & LINK(p, i)) == 0 &&
         (member[p].said[i].proposal == 0 || BIT(member[p].said[i].survivors, i)) ->
        same = 0 /* is heard, and may object */
      :: else
      fi;
      i++
    :: else -> break
    od;
    if
    :: same ->
      has_quorum = 1;
      majority_of(member[p].own.survivors, ALL, member[p].own.ended);
      i = 1;
      do
      :: i < 16 ->
        if
        :: BIT(member[p].own.possible, i) ->
          majority_of(member[p].own.survivors, i, member[p].own.ended)
        :: else
        fi;
        i++
      :: else -> break
      od;
      if
      :: has_quorum ->
        member[p].decided = member[p].own.survivors;
        number = member[p].own.proposal;
        assert(world_of[number] == 0 || world_of[number] == member[p].decided);
        world_of[number] = member[p].decided;
        decided_by[number] = decided_by[number] | ONE(p)
      :: else -> member[p].stopped = 1
      fi
    :: else
    fi
  :: else
  fi
}

/* `result` is what was said under number `n`, or n is 0. */
inline update(p, n) {
  number = n;

  j = 0;
  behind = number > member[p].own.proposal;
  said_possible = result.possible;
  said_survivors = result.survivors;
  said_ended = result.ended;
  load(p);
  compute();
  same = result.survivors == member[p].own.survivors &&
         result.possible == member[p].own.possible &&
         (member[p].decided != 0 || result.ended == member[p].own.ended);
  if
  :: !same || behind ->
    if
    :: member[p].decided != 0 -> withdraw(p); load(p); compute()
    :: else
    fi;
    if
    :: behind && said_survivors == result.survivors && said_ended == result.ended &&
       said_possible == result.possible -> skip
    :: else -> number = MAX(number, member[p].own.proposal) + 1
    fi;
    begin_proposal(p, number)
  :: else
  fi;
  decide(p)
}



inline merge(p) {
  if
  :: (v.ended & ~member[p].view.ended) != 0 ->
    member[p].view.ended = member[p].view.ended | v.ended
  :: else
  fi;
  if
  :: (v.broken & ~member[p].view.broken) != 0 ->
    member[p].view.broken = member[p].view.broken | v.broken
  :: else
  fi;
  i = 0;
  do
  :: i < N ->
    if
    :: v.reached[i] > member[p].view.reached[i] ->
      member[p].view.reached[i] = v.reached[i]
    :: else
    fi;
    if
    :: i != p && (v.broken & LINK(i, p)) != 0 && (member[p].view.broken & LINK(p, i)) == 0 ->
      member[p].view.broken = member[p].view.broken | LINK(p, i)
    :: else
    fi;
    i++
  :: else -> break
  od;
  i = 1;
  do
  :: i < 16 ->
    if
    :: v.given_up[i] != 0 ->
      key = (MAX(v.given_up[i] >> 4, member[p].view.given_up[i] >> 4) << 4) |
            ((v.given_up[i] | member[p].view.given_up[i]) & 15);
      if
      :: key != member[p].view.given_up[i] -> member[p].view.given_up[i] = key
      :: else
      fi
    :: else
    fi;
    i++
  :: else -> break
  od
}

/* Who it is, what it has decided (-1 0: it has stopped; 0 0: undecided), and its view. */
inline tell_state(p) {
  if
  :: member[p].stopped -> SAY(printf("= %d -1 0", p))
  :: !member[p].stopped && member[p].decided != 0 ->
    SAY(printf("= %d %d %d", p, member[p].decided, member[p].own.proposal))
  :: else -> SAY(printf("= %d 0 0", p))
  fi;
  SAY(printf(" %d %d %d", member[p].view.proposal, member[p].view.ended, member[p].view.broken));
  SAY(printf(" %d %d", member[p].view.reached[0], member[p].view.reached[1]));
  SAY(printf(" %d %d", member[p].view.reached[2], member[p].view.reached[3]));
  i = 1;
  do
  :: i < 16 ->
    if
    :: member[p].view.given_up[i] != 0 ->
      SAY(printf(" %d %d %d", i, member[p].view.given_up[i] >> 4, member[p].view.given_up[i] & 15))
    :: else
    fi;
    i++
  :: else -> break
  od;
  SAY(printf("\n"))
}

/* --- Events ----------------------------------------------------------------------------------- */

#define MAY_SEND(p, q) (AGREES(p) && AGREES(q) && !way[p].on_way[q] && BIT(member[p].untold, q) && \
                        !BIT(member[p].view.ended, q) && SAME_SIDE(p, q))
/* What p knows goes to all to whom nothing is on its way. */
inline tell(p) {
  k = 0;
  do
  :: k < N ->
    if
    :: k != p && MAY_SEND(p, k) ->
      send(p, k);
      SAY(printf("send %d %d\n", p, k))
    :: else
    fi;
    k++
  :: else -> break
  od
}
/* Signs of life go to those that stay in p's view, and are answered by those that do not count the
 * sender in: so between two of which one counts the other in, each tells all it knows, some time. */
#define MAY_SPEAK(p, q) (AGREES(p) && AGREES(q) && SAME_SIDE(p, q) && !way[p].on_way[q] && \
                         !BIT(member[p].view.ended, q) && \
                         (BIT(member[p].own.survivors, q) || BIT(member[q].own.survivors, p)))
/* Between whom that would change anything: what is known already, is no event. */
inline find_news() {
  news = 0;
  i = 0;
  do
  :: i < N ->
    j = 0;
    do
    :: j < N ->
      if
      :: i != j && MAY_SPEAK(i, j) ->
        same = member[i].own.proposal == member[j].said[i].proposal &&
               member[i].own.survivors == member[j].said[i].survivors &&
               member[i].own.ended == member[j].said[i].ended &&
               member[i].own.possible == member[j].said[i].possible &&
               (member[i].view.ended & ~member[j].view.ended) == 0 &&
               (member[i].view.broken & ~member[j].view.broken) == 0;
        k = 0;
        do
        :: same && k < N -> same = member[i].view.reached[k] <= member[j].view.reached[k]; k++
        :: else -> break
        od;
        k = 1;
        do
        :: same && k < 16 ->
          same = (member[i].view.given_up[k] >> 4) <= (member[j].view.given_up[k] >> 4) &&
                 (member[i].view.given_up[k] & ~member[j].view.given_up[k] & 15) == 0;
          k++
        :: else -> break
        od;
        if
        :: !same -> news = news | LINK(i, j)
        :: else
        fi
      :: else
      fi;
      j++
    :: else -> break
    od;
    i++
  :: else -> break
  od;
  k = 0
}
inline send(p, q) {
  COPY(member[p].view, way[p].view[q]);
  way[p].on_way[q] = 1;
  member[p].untold = member[p].untold & ~ONE(q)
}
inline speak(p, q) {
  SAY(printf("speak %d %d\n", p, q));
  send(p, q)
}
/* q takes no part any more: nothing is on its way to it. */
inline ignore_for(q) {
  k = 0;
  do
  :: k < N ->
    if
    :: k != q && way[k].on_way[q] -> COPY(nothing, way[k].view[q]); way[k].on_way[q] = 0
    :: else
    fi;
    k++
  :: else -> break
  od
}
inline take_off(p, q) {
  COPY(nothing, way[p].view[q]);
  way[p].on_way[q] = 0
}

#define CAN_RECEIVE(p, q) (way[p].on_way[q] && AGREES(q))
inline receive(p, q) {
  SAY(printf("receive %d %d\n", p, q));
  COPY(way[p].view[q], v);
  compute();
  member[q].said[p].proposal = v.proposal;
  member[q].said[p].survivors = result.survivors;
  member[q].said[p].ended = result.ended;
  member[q].said[p].possible = result.possible;
  merge(q);
  result.survivors = member[q].said[p].survivors;
  result.ended = member[q].said[p].ended;
  result.possible = member[q].said[p].possible;
  update(q, member[q].said[p].proposal);
  take_off(p, q);
  tell_state(q);
  tell(q);
  tell(p)
}
/* The end comes in the middle of sending. */
#define CAN_MISS(p, q) (way[p].on_way[q] && BIT(dead, p))

#define KNOWS_LOSS(q, p) (BIT(member[q].view.ended, p) || (member[q].view.broken & LINK(q, p)) != 0)
#define CAN_LOSE(q, p) (AGREES(q) && !KNOWS_LOSS(q, p) && \
                        (!SAME_SIDE(p, q) || ((BIT(dead, p) || member[p].stopped) && !way[p].on_way[q])))
inline lose(q, p) {
  if
  :: SAME_SIDE(p, q) -> SAY(printf("ended %d %d\n", q, p))
  :: else -> SAY(printf("unreachable %d %d\n", q, p))
  fi;
  if
  :: SAME_SIDE(p, q) &&
     (member[q].said[p].proposal == 0 || BIT(member[q].said[p].survivors, q)) ->
    member[q].view.ended = member[q].view.ended | ONE(p)
  :: else -> member[q].view.broken = member[q].view.broken | LINK(q, p)
  fi;
  result.survivors = 0; result.ended = 0; result.possible = 0;
  update(q, 0);
  tell_state(q);
  tell(q)
}

#define CAN_GIVE_UP(p) (AGREES(p) && member[p].decided != 0 && give_ups > 0)
inline give_up(p) {
  give_ups--;
  SAY(printf("give_up %d %d\n", p, member[p].own.proposal));
  withdraw(p);
  number = member[p].own.proposal + 1;
  begin_proposal(p, number);
  decide(p);
  tell_state(p);
  tell(p)
}

#define CAN_FORM(p) (AGREES(p) && member[p].decided != 0 && \
                     (decided_by[member[p].own.proposal] & member[p].decided) == member[p].decided)
#define SAME_WORLD(p, q) (member[p].formed == member[q].formed && \
                          member[p].own.proposal == member[q].own.proposal)
inline form(p) {
  SAY(printf("form %d\n", p));
  member[p].formed = member[p].decided;
  ignore_for(p);
  same = 1; /* whether the world lives */
  i = 0;
  do
  :: i < N ->
    if
    :: LATER == 0 -> assert(!ALIVE(i) || member[i].formed == 0 || SAME_WORLD(i, p))
    :: else
    fi;
    if
    :: BIT(member[p].formed, i) && !SAME_WORLD(i, p) -> same = 0
    :: else
    fi;
    i++
  :: else -> break
  od;
  if
  :: same ->
    assert(lives == 0 || lives == member[p].formed);
    lives = member[p].formed
  :: else
  fi
}

/* q asks p, which is in a world, or agrees anew from one in which it was to take part. */
#define CAN_HEAR(p, q) (ALIVE(p) && WORLD_OF(p) != 0 && SAME_SIDE(p, q) && AGREES(q) && \
                        (!BIT(WORLD_OF(p), q) || member[q].decided == 0))
inline hear(p, q) {
  SAY(printf("has_gone_on %d %d\n", p, q));
  if
  :: BIT(WORLD_OF(p), q) -> member[q].to_join = WORLD_OF(p)
  :: else -> member[q].stopped = 1; tell_state(q)
  fi;
  ignore_for(q)
}

#define CAN_PART (side == 0 && later != 0)
inline part() {
  side = later;
  later = 0;
  SAY(printf("part %d\n", side));
  i = 0;
  do
  :: i < N ->
    j = 0;
    do
    :: j < N ->
      if
      :: way[i].on_way[j] && !SAME_SIDE(i, j) ->
        k = i; /* which take_off() counts with */
        take_off(k, j);
        i = k
      :: else
      fi;
      j++
    :: else -> break
    od;
    i++
  :: else -> break
  od
}

#define CAN_DIE(p) (ALIVE(p) && deaths > 0)
inline die(p) {
  SAY(printf("die %d\n", p));
  dead = dead | ONE(p);
  deaths--;
  ignore_for(p)
}

inline check_rest() {
  k = 0;
  do
  :: k < N ->
    has_quorum = 1;
    counted = ALL & ~dead;
    key = (BIT(side, k) -> (counted & side) : (counted & ~side));
    best = (BIT(side, k) -> (dead & side) : (dead & ~side));
    majority_of(key, ALL, best);
    assert(!ALIVE(k) || !has_quorum || WORLD_OF(k) != 0);
    k++
  :: else -> break
  od
}

#define PAIR(p, q) \
  :: CAN_RECEIVE(p, q) -> d_step { receive(p, q); find_news() } \
  :: CAN_MISS(p, q) -> d_step { SAY(printf("miss %d %d\n", p, q)); take_off(p, q); find_news() } \
  :: CAN_LOSE(p, q) -> d_step { lose(p, q); find_news() } \
  :: CAN_HEAR(p, q) -> d_step { hear(p, q); find_news() }
#define ALONE(p) \
  :: CAN_DIE(p) -> d_step { die(p); find_news() } \
  :: CAN_GIVE_UP(p) -> d_step { give_up(p); find_news() } \
  :: CAN_FORM(p) -> d_step { form(p); find_news() }

#define SPEAK(p, q) :: (news & LINK(p, q)) != 0 -> d_step { speak(p, q); find_news() }
#define SPEAKS \
  SPEAK(0, 1) SPEAK(0, 2) SPEAK(0, 3) SPEAK(1, 0) SPEAK(1, 2) SPEAK(1, 3) \
  SPEAK(2, 0) SPEAK(2, 1) SPEAK(2, 3) SPEAK(3, 0) SPEAK(3, 1) SPEAK(3, 2)

#ifdef TRACE
#ifndef TRACES
#define TRACES 1
#endif
short traces = TRACES;
/* All as at the start of the run. */
inline begin_again() {
  dead = 0; deaths = 0; give_ups = 0; news = 0; lives = 0; side = 0; later = 0;
  k = 0;
  do
  :: k < N ->
    COPY(nothing, member[k].view);
    member[k].own.proposal = 0; member[k].own.survivors = 0;
    member[k].own.ended = 0; member[k].own.possible = 0;
    member[k].decided = 0; member[k].untold = 0; member[k].formed = 0;
    member[k].stopped = 0; member[k].to_join = 0;
    j = 0;
    do
    :: j < N ->
      member[k].said[j].proposal = 0; member[k].said[j].survivors = 0;
      member[k].said[j].ended = 0; member[k].said[j].possible = 0;
      take_off(k, j);
      j++
    :: else -> break
    od;
    k++
  :: else -> break
  od;
  k = 0;
  do
  :: k < 16 -> decided_by[k] = 0; world_of[k] = 0; k++
  :: else -> break
  od;
  k = 0
}
/* How much may happen: of all between nothing and its limit; two sides at first, later, or never. */
inline choose_limits() {
  do
  :: deaths < DEATHS -> deaths++
  :: break
  od;
  do
  :: give_ups < GIVE_UPS -> give_ups++
  :: break
  od;
  do
  :: later < 7 -> later++
  :: break
  od;
  if
  :: side = later; later = 0
  :: later != 0
  fi;
  if
  :: side == 0 && later == 0 && deaths == 0 -> deaths = 1
  :: else
  fi;
  printf("begin %d\n", side)
}
#endif

init {
begin:
  skip;
#ifdef TRACE
  d_step { begin_again() }
  choose_limits(); /* at random, as a d_step is not */
#endif
  /* Something has broken the epoch. */
  if
  :: side != 0 || later != 0
  :: side == 0 && deaths > 0 -> d_step { die(0); k = 0 }
  :: side == 0 && deaths > 0 -> d_step { die(1); k = 0 }
  :: side == 0 && deaths > 0 -> d_step { die(2); k = 0 }
  :: side == 0 && deaths > 0 -> d_step { die(3); k = 0 }
  fi;
  d_step {
    k = 0;
    do
    :: k < N ->
      if
      :: ALIVE(k) -> begin_proposal(k, 1)
      :: else
      fi;
      k++
    :: else -> break
    od;
    tell(0); tell(1); tell(2); tell(3);
    find_news()
  }
  do
  PAIR(0, 1) PAIR(0, 2) PAIR(0, 3) PAIR(1, 0) PAIR(1, 2) PAIR(1, 3)
  PAIR(2, 0) PAIR(2, 1) PAIR(2, 3) PAIR(3, 0) PAIR(3, 1) PAIR(3, 2)
  ALONE(0) ALONE(1) ALONE(2) ALONE(3)
  :: CAN_PART -> d_step { part(); find_news() }
#if SPEAK_EARLY
  SPEAKS
  :: else -> break
#else
  :: else ->
    if
    SPEAKS
    :: else -> break
    fi
#endif
  od;
  k = 0;
  d_step { check_rest(); k = 0 }
#ifdef TRACE
  printf("rest\n");
  traces--;
  if
  :: traces > 0 -> goto begin
  :: else
  fi
#endif
}
