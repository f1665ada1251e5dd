-- name: PutHost :exec
-- A server says that it is there, under the address at which other servers reach it.
insert into hosts (id, url) values (@id, @url)
on conflict (id) do update set url = excluded.url, started_at = now(), seen_at = now();

-- name: SeeHost :execrows
update hosts set seen_at = now() where id = @id;

-- name: Host :one
select id, url, started_at, seen_at, host_away(id)::bool as away from hosts where id = @id;

-- name: HostsAt :many
-- Other servers that say they are reached at the same address.
select id from hosts where url = @url and id <> @id and not host_away(id);
