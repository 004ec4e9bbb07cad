-- KEYS: the record. ARGV: owner, fencing token, change, lease and retention in microseconds, step, response. Returns
-- the end of the lease in microseconds, 0 if it is unchanged, -1 if it is lost, -2 if there is no record.
local change, answer = ARGV[3], ARGV[7]
local lease, keep = tonumber(ARGV[4]), tonumber(ARGV[5])

local r = read()
if not r then
    return -2
end
-- A claim that is given back never started, so its fencing token is not compared.
if r.owner ~= ARGV[1] or (change ~= 'give-back' and r.fence ~= tonumber(ARGV[2])) then
    return -1
end
if change == 'give-back' then
    change = 'release'
end
local stage = ({complete = COMPLETED, release = RELEASED, ['give-up'] = UNKNOWN})[change]
-- An earlier execution may have had an effect.
if change == 'release' and (r.repeated == 1 or r.step > 0) then
    stage = UNKNOWN
end
-- The same end may be written again.
if stage and stage == r.stage then
    put(r, answer)
    return 0
end
if r.stage == COMPLETED or r.stage == RELEASED then
    return -1
end
if stage then
    r.stage = stage
    if stage == UNKNOWN then
        r.ends = now
    end
    r.expires = after(now, keep)
    put(r, answer)
    return 0
end
if change == 'checkpoint' then
    r.step = math.max(r.step, tonumber(ARGV[6]))
    put(r, '')
    return 0
end
r.stage = RUNNING
r.ends = after(now, lease)
r.expires = after(r.ends, keep)
put(r, '')
return r.ends
