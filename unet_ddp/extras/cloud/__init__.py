"""Object storage at addresses: s3://, gs://, az://, http:// to read; runs there have a mirror."""

from unet_ddp.extras.cloud.clients import NotFoundError, StorageError
from unet_ddp.extras.cloud.objects import (
    Version,
    check_answers,
    copy,
    delete,
    fetch_ahead,
    find_stamp,
    list_objects,
    put,
    read,
    read_chunks,
    read_version,
    start_reader,
)
from unet_ddp.extras.cloud.remote import Url
