#include "plan/double_tree.h"

#include <bit>

namespace rueda {

namespace {

// Positions count from 1, in the order of the tree. Those whose lowest set bit is the k-th are at
// height k, between the positions below them.
int lowest_bit(int position) {
  return position & -position;
}

// Two sibling positions are equally far from their parent. If that does not exist, the next one
// above it is the parent.
int parent_of(int position, int size) {
  const int bit = lowest_bit(position);
  const int parent = (position ^ bit) | (bit << 1);
  return parent <= size ? parent : position ^ bit;
}

std::vector<int> children_of(int position, int size) {
  std::vector<int> children;
  int distance = lowest_bit(position) / 2;
  if (distance == 0) return children;
  children.push_back(position - distance);
  while (distance > 0 && position + distance > size) distance /= 2;
  if (distance > 0) children.push_back(position + distance);
  return children;
}

int position_of(int tree, int rank, int size) {
  if (tree == 0) return rank + 1;
  return size % 2 == 0 ? size - rank : (rank + 1) % size + 1;
}

int rank_at(int tree, int position, int size) {
  if (tree == 0) return position - 1;
  return size % 2 == 0 ? size - position : (position + size - 2) % size;
}

}  // namespace

TreePlace place_in_tree(int tree, int rank, int size) {
  const int position = position_of(tree, rank, size);
  TreePlace place;
  if (const int parent = parent_of(position, size); parent > 0) {
    place.parent = rank_at(tree, parent, size);
  }
  for (const int child : children_of(position, size)) {
    place.children.push_back(rank_at(tree, child, size));
  }
  return place;
}

int tree_depth(int size) {
  return std::bit_width(static_cast<unsigned>(size)) - 1;
}

}  // namespace rueda
