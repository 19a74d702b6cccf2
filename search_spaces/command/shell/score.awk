# Score each item of a file: 1 if the end point lies within the item's tolerance, else 0.
BEGIN {
  split(last, part, "\"x\": ")
  x = part[2] + 0
  distance = x < 0 ? -x : x
  print "item,metric,value"
}
{
  part_of = NR % 2 ? "dev" : "test"
  printf "%s,%s/item.reached,%d\n", $1, part_of, distance <= $2
}
