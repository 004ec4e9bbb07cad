-- KEYS: the record. ARGV: the record as found: owner, fencing token, whether it runs, end of the lease or of the
-- execution, step, repeated, expiry, fingerprint; then the new state: completed or released, owner, retention in microseconds,
-- response. Returns 'resolved', or the reason why it is not.
local becomes = ({completed = COMPLETED, released = RELEASED})[ARGV[9]]
local fence = tonumber(ARGV[2]) + 1

local r = read()
if not r then
    return 'absent'
end
-- The same resolution may be repeated.
if r.stage == becomes and r.owner == ARGV[10] and r.fence == fence then
    return 'resolved'
end
if r.stage == COMPLETED then
    return 'completed'
end
if r.stage == RELEASED then
    return 'released'
end
if r.stage == RUNNING and now < r.ends then
    return 'running'
end
local runs = r.stage == RUNNING
if r.owner ~= ARGV[1] or r.fence + 1 ~= fence or runs ~= (ARGV[3] == '1') or r.ends ~= tonumber(ARGV[4])
    or r.step ~= tonumber(ARGV[5]) or r.repeated ~= tonumber(ARGV[6]) or r.expires ~= tonumber(ARGV[7])
    or r.fingerprint ~= ARGV[8] then
    return 'changed'
end
r.stage, r.owner, r.fence = becomes, ARGV[10], fence
r.expires = math.max(r.expires, after(now, tonumber(ARGV[11])))
put(r, ARGV[12])
return 'resolved'
