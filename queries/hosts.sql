-- name: PutHost :exec
-- A server says that it is there, under the address at which other servers reach it, and what it has. It is not forgotten any
-- more, and drained still if it was.
insert into hosts (id, url, name, version, providers, memory_bytes, cpus, places, capped)
values (@id, @url, @name, @version, @providers::text[], @memory_bytes, @cpus, @places, @capped)
on conflict (id) do update set url = excluded.url, name = excluded.name, version = excluded.version, providers = excluded.providers,
    memory_bytes = excluded.memory_bytes, cpus = excluded.cpus, places = excluded.places, capped = excluded.capped,
    started_at = now(), seen_at = now(), forgotten_at = null;

-- name: SeeHost :execrows
update hosts set seen_at = now() where id = @id;

-- name: LeaveHost :exec
-- A server that stops is away from now on.
update hosts set seen_at = least(seen_at, now() - interval '30 seconds') where id = @id;

-- name: Host :one
select id, url, started_at, seen_at, host_away(id)::bool as away, (draining_at is not null)::bool as draining from hosts where id = @id;

-- name: HostsAt :many
-- Other servers that say they are reached at the same address.
select id from hosts where url = @url and id <> @id and not host_away(id);

-- name: Hosts :many
select sqlc.embed(h), host_away(h.id)::bool as away, m.running::bigint as running, m.parked::bigint as parked
from hosts h cross join lateral machines_on(h.id) m (running, parked)
order by h.name, h.id;

-- name: PlacedOn :one
-- Where a new machine is made, see place_machine; the nil id: nowhere.
select coalesce(place_machine(@provider::text, sqlc.narg('preferred')::uuid), '00000000-0000-0000-0000-000000000000')::uuid as host;

-- name: HostFull :one
-- Whether a host runs as many machines as it may.
select (h.capped and m.running >= h.places)::bool as is_full from hosts h cross join lateral machines_on(h.id) m (running, parked) where h.id = @id;

-- name: DrainHost :execrows
update hosts set draining_at = case when @draining::bool then coalesce(draining_at, now()) end where id = @id;

-- name: ForgetHost :execrows
-- Only one that has given no sign of life for so long.
update hosts set forgotten_at = now() where id = @id and seen_at < now() - make_interval(secs => @silent::float8);

-- name: ForgottenHosts :many
select id, name from hosts where forgotten_at is not null;

-- name: DropForgottenHost :exec
delete from hosts where id = @id and forgotten_at is not null;

-- name: NotifyHost :exec
-- Has the server of a host, or with no name every server, look at what is asked of it.
select pg_notify('managoat_hosts', @host::text);
